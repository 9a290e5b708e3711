"""Times of a first use: import and load, one image with 64 views and 10 labels, and peak memory.

python benchmarks/first_image.py [--threads 2]
"""

from __future__ import annotations

import argparse
import resource
import time

LABELS = ["cat", "dog", "cup of coffee", "rocket", "motorcycle", "astronaut", "bicycle", "bird", "car", "tree"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--method", default="kld+cats")
    options = parser.parse_args()

    began = time.perf_counter()
    import torch

    torch.set_num_threads(options.threads)
    import poise
    from poise.images.samples import sample_images

    classify = poise.Classifier(LABELS, method=options.method, views=64, device="cpu")
    print(f"import and load      {time.perf_counter() - began:6.2f} s")
    for path in sample_images():
        began, busy = time.perf_counter(), time.process_time()
        result = classify(path)
        spent, used = time.perf_counter() - began, time.process_time() - busy
        print(f"{path.name:20} {spent:6.2f} s ({used:.2f} s of processor time)  {result.label} {result.confidence:.3f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory          {peak:6.2f} GiB")


if __name__ == "__main__":
    main()
