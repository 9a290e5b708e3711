"""The page: its inputs, its panels, and which function fills them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.data_classes import ImageData

from poise import methods
from poise.calibration import Calibration, IndependentCalibration
from poise.demo.answering import PANELS, ZERO, Question, Upload, answer
from poise.demo.example_rows import EXAMPLES, Example
from poise.demo.file_guard import protect
from poise.demo.markup import card, status, text
from poise.inference.classifier import DEFAULT_METHOD
from poise.prompts.labels import write_labels
from poise.prompts.template import DEFAULT_TEMPLATE
from poise.serve.service import Service
from poise.serve.settings import ServiceSettings
from poise.text import counted, first_few

_LEAD = (
    "<h1>What is a confidence worth?</h1><p>Give an image and the labels that it may have. A model that was never "
    "trained on your labels picks one and says how sure it is. This page shows where that number comes from, how "
    "tuning on the image itself changes it, and what you may rely on.</p>"
)
_TUNED = (
    "<li><b>An answer tuned on the image.</b> The words of the sentence are adjusted so that random views of the "
    "image are taken into account. No label is needed for that, and nothing is kept afterwards.</li>"
)
_EMPTY = (
    "<ol><li><b>An answer without training.</b> The model compares the image with a sentence for each of your labels, "
    "such as “a photo of a cat”, and turns the similarities into probabilities. This is called zero-shot.</li>"
    "{tuned}"
    "<li><b>What the confidence is worth.</b> It is calibrated if, of 100 answers that claim 80 %, about 80 are right. "
    "Only images with known labels can show that. The page says what is known and what is not.</li></ol>"
    '<p class="say">Two of the examples go wrong on purpose: one is answered wrongly, and one shows something that no '
    "label names.</p>"
)
_LISTED = 8  # labels of a calibration that the banner names
_STALE = '<p role="status">The inputs have changed since this answer. Press Classify for a new one.</p>'
# Marks the answer when an input changes, and removes the mark when a new answer is asked for.
_MARK = """() => {
  if (document.getElementById('poise-answer')) document.getElementById('poise-panels').classList.add('poise-old');
}"""
_UNMARK = "() => document.getElementById('poise-panels').classList.remove('poise-old')"
# The buttons that copy a call; one listener on the panel, because the panel's content is replaced.
_COPY = """
element.addEventListener('click', async (event) => {
  const button = event.target.closest('button.copy');
  if (!button) return;
  await navigator.clipboard.writeText(button.parentElement.querySelector('pre').innerText);
  button.innerText = 'Copied';
});
"""


# Colours of gradio's smaller texts, which are too pale to read well.
_SUBDUED = (
    "body_text_color_subdued",
    "block_info_text_color",
    "block_label_text_color",
    "block_title_text_color",
    "input_placeholder_color",
)


def css() -> str:
    """Return the page's style."""
    return (files("poise.demo") / "assets" / "demo.css").read_text("utf-8")


def theme() -> gr.themes.Base:
    """Return gradio's plain theme with fonts that every machine has."""
    base = gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    )
    subdued = {name: "#5b6570" for name in _SUBDUED} | {f"{name}_dark": "#a3adb8" for name in _SUBDUED}
    return base.set(
        **subdued,
        block_radius="12px",
        input_radius="8px",
        button_large_radius="8px",
        body_background_fill_dark="#12151a",
        block_background_fill_dark="#1a1f26",
        input_background_fill_dark="#222830",
        block_border_color_dark="#2d343d",
        border_color_primary_dark="#2d343d",
        block_label_background_fill_dark="#1a1f26",
        checkbox_label_background_fill="#f6f7f9",
        checkbox_label_background_fill_dark="#222830",
        checkbox_label_background_fill_hover_dark="#2d343d",
        checkbox_label_background_fill_selected="#e3f0f8",
        checkbox_label_background_fill_selected_dark="#16354a",
    )


def build(service: Service, runs: Path | None = None) -> gr.Blocks:
    """Return the page.

    Args:
        service: answers the images.
        runs: folder of benchmark runs for the second tab; None for no such tab.
    """
    with gr.Blocks(title="poise", analytics_enabled=False, delete_cache=(600, 3600), fill_width=True) as page:
        gr.HTML(_LEAD + banner(service.settings), elem_id="poise-lead", apply_default_css=False)
        if runs is None:
            _classify_tab(service)
        else:
            with gr.Tabs():
                with gr.Tab("Classify an image"):
                    _classify_tab(service)
                with gr.Tab("Benchmark runs") as tab:
                    _runs_tab(runs, tab)
    page.queue(max_size=32, default_concurrency_limit=4)
    protect(page)
    return page


def banner(settings: ServiceSettings) -> str:
    """Return what the start page says about the calibration, if there is one."""
    calibration = settings.calibration
    if calibration is None:
        return ""
    labels = first_few(calibration.conditions.labels, _LISTED)
    return (
        f'<p id="poise-calibrated"><b>Calibrated</b> with {counted(len(calibration), "image")}, for the labels '
        f"{text(labels)}, with {text(', '.join(calibration.methods))}. "
        f"{_before(calibration)}Other labels are answered without calibration.</p>"
    )


def welcome(settings: ServiceSettings) -> str:
    """Return what the page shows before there is an answer; nothing is tuned with a calibration of zero-shot alone."""
    calibration = settings.calibration
    tuned = calibration is None or set(calibration.methods) != {ZERO}
    return card("What you will see", _EMPTY.format(tuned=_TUNED if tuned else ""))


def _before(calibration: Calibration | IndependentCalibration) -> str:
    """Return how far off confidences were on the calibration images, if one label is correct."""
    if not isinstance(calibration, Calibration):
        return ""
    part = calibration.methods[calibration.recommended]
    gap, p = part.gap
    accuracy = 100 * part.before["accuracy"].value
    way = "more" if gap > 0 else "less"
    return (
        f"On these images {text(calibration.recommended)} was right in {accuracy:.0f} %, and claimed "
        f"{100 * abs(gap):.1f} points {way} on average (before calibration; p {p:.2g} if every confidence is right). "
    )


def _classify_tab(service: Service) -> None:
    examples = _example_buttons()
    with gr.Row(elem_id="poise-columns"):
        with gr.Column(scale=2, min_width=300, elem_id="poise-inputs"):
            image = gr.Image(
                label="Image",
                type="filepath",
                sources=["upload", "clipboard"],
                image_mode=None,
                height=260,
                buttons=[],
                elem_id="poise-image",
                alt_text="the image to classify",
            )
            # poise reads the bytes of the file, not gradio. (gradio writes files next to subclasses of its components.)
            image.preprocess = _received  # type: ignore[method-assign]
            labels = gr.Textbox(
                label="Labels",
                info="What it may be, separated by commas or lines; in a tree: animal > cat > tabby; in groups: "
                "cat, dog | indoor, outdoor.",
                lines=2,
                max_lines=8,
                value=write_labels(service.settings.labels, service.settings.groups, service.settings.parents),
                placeholder="for example: cat, dog, rabbit",
                elem_id="poise-labels",
            )
            options = _options(service)
            run = gr.Button("Classify", variant="primary", elem_id="poise-run")
        with gr.Column(scale=3, min_width=320, elem_id="poise-panels"):
            gr.HTML(_STALE, elem_id="poise-stale", apply_default_css=False)
            panels = {
                name: gr.HTML(
                    welcome(service.settings) if name == "answer" else "",
                    elem_classes="poise",
                    apply_default_css=False,
                    js_on_load=_COPY if name == "calls" else None,
                )
                for name in PANELS
            }
    inputs, outputs = [image, labels, *options], list(panels.values())

    def respond(
        upload: Upload | None,
        written: str | None,
        chosen: list[str],
        template: str | None,
        views: float | None,
        seed: float | None,
        calibrated: bool,
        request: gr.Request,
    ) -> Iterator[dict[Any, str]]:
        question = Question(
            upload,
            written or "",
            tuple(chosen),
            template or "",
            None if views is None else int(views),
            None if seed is None else int(seed),
            calibrated,
            _url(request),
        )
        for changed in answer(service, question):
            yield {panels[name]: content for name, content in changed.items()}

    settings: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    clicked: dict[str, Any] = {**settings, "trigger_mode": "always_last"}
    run.click(respond, inputs, outputs, **clicked)
    for changed in inputs:
        gr.on([changed.change if isinstance(changed, gr.Image | gr.Dropdown) else changed.input], None, js=_MARK)
    gr.on([run.click, *(button.click for button, _ in examples)], None, js=_UNMARK)
    for button, example in examples:
        chosen = button.click(
            lambda row=example: (str(row.path), ", ".join(row.labels)), None, [image, labels], **settings
        )
        chosen.then(respond, inputs, outputs, **settings)


def _options(service: Service) -> list[Any]:
    """Return the inputs that most people leave alone."""
    settings = service.settings
    names = [name for group in ("paper", "own", "peers") for name in methods.names(group) if name != ZERO]
    calibration = settings.calibration
    known = () if calibration is None else tuple(calibration.methods)
    described = [(f"{name}: {methods.get(name).about.description}", name) for name in names]
    with gr.Accordion("Methods and options", open=False):
        chosen = gr.Dropdown(
            described,
            value=[name for name in known or settings.methods if name in names] or ([] if known else [DEFAULT_METHOD]),
            multiselect=True,
            label="Methods beside zero-shot",
            info=f"At most {settings.limits.methods - 1}."
            + (f" The calibration has {', '.join(known)}." if known else ""),
            elem_id="poise-methods",
        )
        template = gr.Textbox(
            label="Prompt", info="{} stands for the label.", placeholder=settings.template or DEFAULT_TEMPLATE
        )
        views = gr.Slider(
            1, settings.limits.views, settings.views, step=1, label="Views", info="More views take longer."
        )
        seed = gr.Number(settings.seed, label="Seed", info="Of the random views.", precision=0, minimum=0)
        about = f"From {len(calibration)} labelled images, for its own labels." if calibration else None
        calibrated = gr.Checkbox(
            calibration is not None, label="Use the server's calibration", info=about, visible=calibration is not None
        )
    return [chosen, template, views, seed, calibrated]


def _example_buttons() -> list[tuple[gr.Button, Example]]:
    with gr.Row(elem_id="poise-examples"):
        return [
            (gr.Button(f"{row.title}: {row.about}", icon=row.path, size="sm", elem_classes="example"), row)
            for row in EXAMPLES
        ]


def _runs_tab(runs: Path, tab: gr.Tab) -> None:
    from poise.demo import run_pages  # which imports what draws figures

    names = run_pages.choices(runs)
    menu = gr.Dropdown(
        names, value=names[0] if names else None, label="Run", info=f"Runs of `poise bench run` in '{runs.name}'."
    )
    frame = gr.HTML(
        "" if names else "<p>There is no run in this folder.</p>",
        elem_classes="poise",
        apply_default_css=False,
        elem_id="poise-frame",
    )

    def show(name: str | None) -> Iterator[str]:
        yield status(f"Drawing the figures of {text(name)} …", busy=True)
        yield run_pages.run_frame(runs, name)

    if names:
        tab.select(show, menu, frame, api_visibility="private", show_progress="hidden")
        menu.change(show, menu, frame, api_visibility="private", show_progress="hidden")


def _received(payload: ImageData | None) -> Any:
    """Return the file that the browser sent, and its name there."""
    if payload is None or payload.path is None:
        return None
    path = Path(payload.path)
    return Upload(path, payload.orig_name or path.name)


def _url(request: gr.Request) -> str:
    """Return the server's address as the browser sees it."""
    host = request.headers.get("host", "")
    return f"http://{host}" if re.fullmatch(r"[\w.\-:\[\]]+", host) else "http://127.0.0.1:8000"
