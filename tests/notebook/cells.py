"""A session of a notebook: its cells, each run on its own, for `test_functions_of_cells.py` and a real kernel.

The first cell is given the start method. The last prints "all cells ran".
"""

CELLS = [
    """
import sys
import mp_all as mp

context = mp.get_context(METHOD)
scale = 2
model = None


def initializer(value):
    global model
    model = value


class Point:
    def __init__(self, x):
        self.x = x

    def scaled(self):
        return Point(self.x * scale)


class NotThere(Exception):
    pass


def helper(point):
    assert mp.parent_process() is not None
    return point.scaled()


def call(point):
    return helper(point), model


def fail():
    raise NotThere("here")


pool = context.Pool(2, initializer, ("a model",))
executor = mp.ProcessPoolExecutor(2, context, initializer, ("a model",))
""",
    """
# Functions, classes, what the initializer has set; objects there and back.
for results in (
    pool.map(call, [Point(1), Point(2)]),
    list(pool.imap(call, [Point(1), Point(2)])),
    sorted(pool.imap_unordered(call, [Point(1), Point(2)]), key=lambda result: result[0].x),
    pool.starmap(call, [(Point(1),), (Point(2),)]),
    [pool.apply(call, (Point(1),)), pool.apply_async(call, (Point(2),)).get()],
    list(executor.map(call, [Point(1), Point(2)])),
    [executor.submit(call, Point(1)).result(), executor.submit(call, Point(2)).result()],
):
    assert [(type(point) is Point, point.x, given) for point, given in results] == [
        (True, 2, "a model"),
        (True, 4, "a model"),
    ], results
""",
    """
# Lambdas, closures, bound methods, a cell's class of exceptions.
def add(n):
    return lambda x: x + n

assert pool.map(lambda x: x * scale, [1, 2]) == [2, 4]
assert pool.map(add(3), [1, 2]) == [4, 5]
assert executor.submit(Point(4).scaled).result().x == 8
assert pool.apply(add, (3,))(4) == 7
for call_it in (lambda: pool.apply(fail), lambda: executor.submit(fail).result()):
    try:
        call_it()
    except NotThere as error:
        assert str(error) == "here"
    else:
        raise AssertionError("nothing was raised")
""",
    """
# Defined again: the function itself, one that it calls, a class, a value that they use.
scale = 10
assert pool.map(call, [Point(1)])[0][0].x == 10
scale = [7]
scale.append(8)
assert executor.submit(lambda: scale).result() == [7, 8]


def helper(point):
    return "another helper"


assert [pool.apply(call, (Point(1),)) for _ in range(4)] == [("another helper", "a model")] * 4


def call(point):
    return "another call"


assert pool.map(call, range(8), chunksize=1) == ["another call"] * 8
assert list(executor.map(call, range(8))) == ["another call"] * 8


class Point:
    def scaled(self):
        return self, "another class"


for point, text in pool.map(Point.scaled, [Point() for _ in range(4)]):
    assert type(point) is Point and text == "another class"
""",
    """
# Processes, queues, the launcher.
def put(queue, point):
    queue.put((point, model))


class Child(context.Process):
    def run(self):
        sys.exit(7)


queue = context.Queue()
process = context.Process(target=put, args=(queue, Point()))
process.start()
point, value = queue.get(timeout=60)
process.join()
assert type(point) is Point and value is None and process.exitcode == 0
child = Child()
child.start()
child.join()
assert child.exitcode == 7
for points in mp.run(lambda rank, point: [point] * rank, (Point(),), nprocs=2, start_method=METHOD):
    assert all(type(point) is Point for point in points)
mp.start_processes(lambda rank: None, nprocs=2, start_method=METHOD)
""",
    """
assert model is None and scale == [7, 8]  # a result changes nothing here
pool.close()
pool.join()
executor.shutdown()
del pool, executor, queue, process, child
print("all cells ran")
""",
]
