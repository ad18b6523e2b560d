"""Ray: a call of an actor with the array, which goes through the object store."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from benchmarks.peers.base import Ask, Courier, Peer, Starter, stand_apart

STORE_BYTES = 300 << 20  # two of the largest, so that the store soon reuses its pages


class RayActor(Peer):
    """A call of an actor on the same machine; arrays above 100 KiB go through its object store."""

    name = "Ray"
    needs = "ray"
    distribution = "ray"
    slow = True
    _folder = ""

    def open(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        super().open()

    def connect(self, starter: Starter) -> Ask:
        self._folder = folder(os.getpid())
        self.api.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            object_store_memory=STORE_BYTES,
            _system_config={"preallocate_plasma_memory": True},
            _temp_dir=self._folder,
        )
        actor = self.api.remote(Toucher).remote()
        get, call = self.api.get, actor.touch.remote
        get(call(0))
        return lambda message: get(call(message))

    def close(self) -> None:
        if self._folder:
            self.api.shutdown()
            self.clean_up(os.getpid())

    @classmethod
    def clean_up(cls, pid: int) -> None:
        shutil.rmtree(folder(pid), ignore_errors=True)


def folder(pid: int) -> str:
    """Return the folder for sockets and logs of the driver *pid*; its name must be short for the sockets."""
    return os.path.join(tempfile.gettempdir(), f"bench-ray-{pid}")


class Toucher:
    def __init__(self) -> None:
        stand_apart()
        self.courier = Courier()

    def touch(self, message: Any) -> float:
        return self.courier.touch(message)
