"""Small directories of IAM-OnDB's official form."""

import numpy as np

FORMS = {  # form: its list, and its transcript
    "a01-000u": ("trainset.txt", ["A MOVE to stop", "Mr. Gaitskell's 7 points"]),
    "a01-000x": ("testset_f.txt", ["from nominating any", "more Labour life Peers"]),
    "b02-050": ("testset_t.txt", ["is to be made", "at a meeting"]),
    "c03-001z": ("testset_v.txt", ["of Labour MPs", "tomorrow, he said"]),
}


def xml(strokes, times):
    """A line's strokes as the publisher writes them, with or without times."""
    lines = ['<?xml version="1.0" encoding="ISO-8859-1"?>', "<WhiteboardCaptureSession>"]
    if times:
        lines += ["  <WhiteboardDescription>", '    <SensorLocation corner="top_left"/>']
        lines += ['    <VerticallyOppositeCoords x="878" y="2829"/>', "  </WhiteboardDescription>"]
    lines.append("  <StrokeSet>")
    for stroke in strokes:
        when = ' start_time="15352383.48" end_time="15352383.77"' if times else ""
        lines.append(f'    <Stroke colour="black"{when}>')
        for x, y in stroke:
            when = ' time="15352383.48"' if times else ""
            lines.append(f'      <Point x="{x}" y="{y}"{when}/>')
        lines.append("    </Stroke>")
    return "\n".join([*lines, "  </StrokeSet>", "</WhiteboardCaptureSession>", ""])


def transcript(lines):
    return "OCR:\n\nSOMETHING ELSE\n\nCSR:\n\n" + "\n".join(lines) + "\n"


def strokes_path(folder, line):
    return folder / "lineStrokes" / line[:3] / line[:7] / f"{line}.xml"


def transcript_path(folder, form):
    return folder / "data" / "ascii" / form[:3] / form[:7] / f"{form}.txt"


def write_iam(folder, points=60, seed=0):
    """Two lines a form, every second file with times, transcripts and lists."""
    random = np.random.default_rng(seed)
    for number, (form, (name, texts)) in enumerate(FORMS.items()):
        path = transcript_path(folder, form)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(transcript(texts))
        with open(folder / name, "a") as file:
            file.write(f" {form}\n")
        for line in (1, 2):
            places = np.cumsum(random.integers(-20, 30, (points, 2)), 0) + 1000
            path = strokes_path(folder, f"{form}-{line:02}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(xml(np.split(places, [points // 3, points // 2]), times=(number + line) % 2 == 0))
    return folder
