from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from poise.errors import RunInterruptedError
from poise.evaluate.interrupt import interruptible


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_raised_where_it_is_safe(number, code):
    before = signal.getsignal(number)
    with interruptible() as check:
        check()
        os.kill(os.getpid(), number)
        with pytest.raises(RunInterruptedError) as caught:
            check()
    assert caught.value.exit_code == code
    assert signal.getsignal(number) is before


def test_the_second_signal_ends_the_process_at_once():
    program = (
        "import os, signal, time\n"
        "from poise.evaluate.interrupt import interruptible\n"
        "with interruptible():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(30)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=25)
    assert done.stdout == "still here\n"
    assert done.stderr.count("poise: stopping after the chunk that is being computed; a second signal") == 1
    assert done.returncode == 143
