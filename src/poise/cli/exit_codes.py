"""Exit codes of all commands, in one place; 0 is success."""

from __future__ import annotations

USAGE = 2  # an option, a name or an input was rejected before the work began
SOME_FAILED = 3  # some images failed; the rows of the others are complete. `data check`: something is wrong
NOTHING_DONE = 4  # every image failed, or there was nothing to do
WRITE_FAILED = 5  # results could not be written; earlier results are kept
ALARM = 6  # `monitor`: the images differ from the calibration images
INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT; other signals give 128 + their number
