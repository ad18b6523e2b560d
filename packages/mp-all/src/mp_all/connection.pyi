from multiprocessing.connection import *
from multiprocessing.connection import (
    Connection as Connection,
    answer_challenge as answer_challenge,
    deliver_challenge as deliver_challenge,
)
