"""Classify images with a file of `poise export onnx`; needs onnxruntime, NumPy and Pillow, neither poise nor torch.

python examples/onnx_classify.py classifier.onnx cat.jpg dog.jpg
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

if len(sys.argv) < 3:
    sys.exit("Usage: python onnx_classify.py FILE.onnx IMAGE...")
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
facts = json.loads(session.get_modelmeta().custom_metadata_map["poise"])
spec, size = facts["image"], facts["image"]["size"]
if facts["views"] > 1:
    sys.exit(f"The method '{facts['method']}' needs {facts['views']} views per image: use `poise classify`.")
outputs = [output.name for output in session.get_outputs()]
half = {"round": round, "floor": lambda number: int(number // 1)}[spec["crop_offset"]]
for path in sys.argv[2:]:
    try:
        image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    except OSError as error:  # such as a folder, or a file that is no image
        sys.exit(f"{path} can't be read: {error}")
    width, height = image.size
    if spec["resize"] == "squash":
        wide, high = size, size
    else:  # the shorter side to the model's size
        wide, high = (max(size, int(size * side / min(width, height))) for side in (width, height))
    left, top = half((wide - size) / 2), half((high - size) / 2)
    image = image.resize((wide, high), Image.Resampling[spec["interpolation"].upper()])
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), np.float32) / 255
    view = ((pixels - np.float32(spec["mean"])) / np.float32(spec["std"])).transpose(2, 0, 1)
    answer = dict(zip(outputs, session.run(None, {"views": view[None, None]}), strict=True))
    best = int(answer["probabilities"][0].argmax())
    row = {"image": path, "label": facts["labels"][best], "confidence": float(answer["probabilities"][0, best])}
    if "yes" in answer:  # of independent labels; the others are unsure
        for outcome in ("yes", "no"):
            row[outcome] = [label for label, said in zip(facts["labels"], answer[outcome][0], strict=True) if said]
    if "in_set" in answer:  # the labels that contain the correct one for the share facts["coverage"] of images
        row["set"] = [label for label, inside in zip(facts["labels"], answer["in_set"][0], strict=True) if inside]
    if "answered" in answer:  # at most the share facts["max_error"] of the answers is wrong
        row["decision"] = "answer" if answer["answered"][0] else "abstain"
    if "node" in answer:  # of the labels' tree: the most specific one that is sure enough
        row["node"] = facts["nodes"][answer["node"][0]] if answer["node"][0] >= 0 else None
    print(json.dumps(row, ensure_ascii=False))
