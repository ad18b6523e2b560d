"""The rows of the table, a module each: `measure(bench)` returns the lines of the row."""

from __future__ import annotations

from benchmarks.rows import (
    p1_small,
    p2_large,
    p3_shared,
    p4_list,
    p5_stream,
    p6_pool,
    p7_million,
    p8_allocator,
    p9_ranks,
    p11_steady,
    p12_channel,
    p13_queue,
    p14_tasks,
    p15_idle,
    p16_calls,
    p17_kills,
    p19_tensors,
    p20_loader,
    p21_frozen,
    p22_start,
)

ROWS = {
    "P1": p1_small,
    "P2": p2_large,
    "P3": p3_shared,
    "P4": p4_list,
    "P5": p5_stream,
    "P6": p6_pool,
    "P7": p7_million,
    "P8": p8_allocator,
    "P9": p9_ranks,
    "P11": p11_steady,
    "P12": p12_channel,
    "P13": p13_queue,
    "P14": p14_tasks,
    "P15": p15_idle,
    "P16": p16_calls,
    "P17": p17_kills,
    "P19": p19_tensors,
    "P20": p20_loader,
    "P21": p21_frozen,
    "P22": p22_start,
}
