from __future__ import annotations

import threading
import time

import pytest

from poise.loading.prepare import ahead


def test_order_is_kept_and_no_more_than_the_window_is_begun():
    begun, lock = [], threading.Lock()

    def work(job):
        with lock:
            begun.append(job)
        time.sleep(0.002 * (job % 3))
        return job

    for asked, result in enumerate(ahead(work, range(40), threads=4, window=5)):
        assert result == asked
        assert len(begun) <= asked + 7


def test_a_failing_job_fails_where_its_turn_is():
    stream = ahead(lambda job: 1 / job, [1, 2, 0, 4], threads=2, window=4)
    assert next(stream) == 1
    assert next(stream) == 0.5
    with pytest.raises(ZeroDivisionError):
        next(stream)


def test_leaving_early_stops_the_rest():
    done = []
    stream = ahead(lambda job: (time.sleep(0.01), done.append(job)), range(1000), threads=1, window=3)
    next(stream)
    stream.close()
    time.sleep(0.05)
    assert len(done) < 10
