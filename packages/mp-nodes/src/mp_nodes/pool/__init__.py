"""`Pool(64, engine="ray")`: one rank on each node of an engine, and in each a `mp_pool.Pool`.

Note [A pool over nodes]
------------------------
    driver   Pool --tasks--> NodeScheduler ==messages==> rank of a node: NodePool --> mp_pool.Pool --> workers
             map, imap, ... <--outcomes--        <==      (serve.py)

Each task and each result is one `bytes`, pickled by value where it begins and unpickled where it ends: driver and
worker. The engine, the agent and the node's rank pass it on. The function of a `map`, if it has arrays or other state,
goes to each node once, and there to each worker once.

A node has as many tasks as it has workers, and beside them as many as it completes in `AHEAD` seconds, so that it does
not wait for the network between small tasks. If they wait behind long ones, an idle node gets them.

Processes that may end:

- A worker: the node's pool replaces it, and its task fails with `WorkerLostError` or, with `retries=`, is repeated.
- A node, or its rank or agent: its tasks fail likewise, and the error names the node. The other nodes go on. After the
  last one, all tasks fail.
- The driver: the agents end the ranks, and each worker ends with its rank (the kernel's parent-death signal).
"""
