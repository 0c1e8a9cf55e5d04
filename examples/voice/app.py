"""Where in a recording does somebody speak?

    wherry serve examples/voice/app.py
    curl 127.0.0.1:8000/speech -H 'Content-Type: audio/wav' --data-binary @speech.wav

The server takes any audio file, the model has samples at the rate that its network was trained on.
"""

from importlib.metadata import distribution
from typing import Annotated, Any, TypedDict

import numpy as np
import onnxruntime

import wherry

RATE = 16000  # Hz
WINDOW, CONTEXT = 512, 64  # samples: what is judged at once, and what of the past goes with it
STARTS, GOES_ON = 0.5, 0.35  # probabilities: speech that has begun is believed more easily
SHORTEST_PAUSE, SHORTEST_SPEECH, MARGIN = 0.1, 0.25, 0.03  # seconds

Samples = np.ndarray[Any, np.dtype[np.float32]]
Recording = Annotated[wherry.Audio, wherry.AudioSpec(sample_rate=RATE)]


class Span(TypedDict):
    start: float  # seconds from the beginning of the recording
    end: float


class Found(TypedDict):
    speech: list[list[Span]]
    share: list[float]  # of the recording's length, 0 to 1


class Speech(wherry.Model):
    """Silero VAD, a recurrent network of 2.3 MB, out of the package of that name."""

    route = "/speech"
    max_batch_size = 16

    def load(self, device: wherry.Device) -> None:
        # Found, and not imported: that would need torch.
        file = distribution("silero-vad").locate_file("silero_vad/data/silero_vad.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.network = onnxruntime.InferenceSession(str(file), options)

    def execute(self, audio: list[Recording]) -> Found:
        likely = self.probabilities([one.samples for one in audio])
        found = [spans(row, one.seconds) for row, one in zip(likely, audio, strict=True)]
        shares = [
            round(sum(span["end"] - span["start"] for span in row) / max(one.seconds, 1 / RATE), 3)
            for row, one in zip(found, audio, strict=True)
        ]
        return {"speech": found, "share": shares}

    def probabilities(self, recordings: list[Samples]) -> list[list[float]]:
        """Of speech, for each window of each recording.

        A window needs the state after the one before it, so one run of the network has a window of
        each recording. The longest is first: what has ended leaves the batch at its end.
        """
        windows = [windows_of(samples) for samples in recordings]
        order = sorted(range(len(windows)), key=lambda row: -len(windows[row]))
        found: list[list[float]] = [[] for _ in windows]
        state = np.zeros((2, len(windows), 128), np.float32)
        for step in range(max(map(len, windows))):
            order = [row for row in order if step < len(windows[row])]
            likely, state = self.network.run(
                None,
                {
                    "input": np.stack([windows[row][step] for row in order]),
                    "state": state[:, : len(order)],
                    "sr": np.array(RATE),
                },
            )
            for row, one in zip(order, likely[:, 0].tolist(), strict=True):
                found[row].append(one)
        return found


def windows_of(samples: Samples) -> Samples:
    """Shape [windows, CONTEXT + WINDOW], zeros before the beginning and after the end; a view."""
    padded = np.pad(samples, (CONTEXT, -len(samples) % WINDOW))
    if len(padded) == CONTEXT:
        return np.empty((0, CONTEXT + WINDOW), np.float32)
    return np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + WINDOW)[::WINDOW]


def spans(likely: list[float], seconds: float) -> list[Span]:
    """The stretches of windows with speech, without pauses and sounds too short to be any."""
    stretches: list[list[float]] = []
    speaking = False
    for number, probability in enumerate(likely):
        was, speaking = speaking, probability >= (GOES_ON if speaking else STARTS)
        if not speaking:
            continue
        begin, end = number * WINDOW / RATE, (number + 1) * WINDOW / RATE
        if was or (stretches and begin - stretches[-1][1] < SHORTEST_PAUSE):
            stretches[-1][1] = end
        else:
            stretches.append([begin, end])
    return [
        {
            "start": round(max(0.0, begin - MARGIN), 2),
            "end": round(min(seconds, end + MARGIN), 2),
        }
        for begin, end in stretches
        if end - begin >= SHORTEST_SPEECH
    ]


speech = Speech()
