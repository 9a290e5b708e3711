from __future__ import annotations

from pathlib import Path

import pytest

from tests.report import made


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run: two datasets, seven methods, two seeds, text features of one dataset."""
    folder = tmp_path_factory.mktemp("runs")
    made.write_features(made.write_run(folder))
    return folder
