"""Rows of a step become the arrays of its batch, in steps of decode rows alone without new arrays."""

import numpy as np

from stolon.srt.step_rows import DecodeBatch, StepRows

TABLE = np.arange(60).reshape(4, 15) * 3 + 100


def decode_rows(rows):
    step = StepRows()
    for token, position, row in rows:
        step.add_decode(token, position, row)
    return step


def columns(batch):
    names = "input_ids positions write_slots q_lens kv_lens table_rows output_rows"
    arrays = {name: getattr(batch, name) for name in names.split()}
    assert all(array.dtype == np.int64 and array.flags.c_contiguous for array in arrays.values())
    return {name: array.tolist() for name, array in arrays.items()}


def test_a_mixed_step():
    step = decode_rows([(7, 4, 2), (8, 0, 0)])
    step.add([1, 2, 3], 5, 1, 0)
    step.add([4, 5], 9, 3, 2)
    assert step.num_outputs == 4
    batch = step.batch(TABLE)
    assert batch.slot_table is TABLE
    assert columns(batch) == {
        "input_ids": [7, 8, 1, 2, 3, 4, 5],
        "positions": [4, 0, 5, 6, 7, 9, 10],
        "write_slots": [
            *(TABLE[2, 4], TABLE[0, 0]),
            *TABLE[1, 5:8].tolist(),
            *TABLE[3, 9:11].tolist(),
        ],
        "q_lens": [1, 1, 3, 2],
        "kv_lens": [5, 1, 8, 11],
        "table_rows": [2, 0, 1, 3],
        "output_rows": [0, 1, 5, 6],
    }


def test_decode_rows_fill_the_same_batch_anew():
    table = TABLE.copy()
    decode = DecodeBatch(3, table)
    first = decode.fill(decode_rows([(1, 3, 0), (2, 0, 1), (3, 14, 3)]))
    steps = (
        [(1, 3, 0), (2, 0, 1), (3, 14, 3)],
        [(9, 4, 0), (8, 1, 1), (7, 2, 2)],
        [(9, 4, 3), (2**40, 7, 1), (0, 0, 2)],
    )
    for rows in steps:
        table += 1  # slots are read from the table of now
        batch = decode.fill(decode_rows(rows))
        assert batch is first
        assert batch.slot_table is table
        assert columns(batch) == columns(decode_rows(rows).batch(table))
