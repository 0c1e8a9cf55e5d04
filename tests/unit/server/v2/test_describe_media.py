"""What do the metadata of a model say of images, audio and files?"""

import io

from PIL import Image

import wherry
from tests.http_exchange import served


def png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (2, 1)).save(out, "png")
    return out.getvalue()


@wherry.model(examples=[{"image": png(), "file": b"x" * 100_000}])
def media(image: wherry.Image, file: wherry.File) -> list[str]:
    return [str(image.size), str(len(file.data))]


def test_a_tensor_says_what_its_bytes_hold() -> None:
    with served(media) as client:
        about = client.get("/v2/models/media").json
        listed = client.get("/v2/models").json["models"][0]

    image, file = about["inputs"]
    assert (image["datatype"], image["parameters"]["content"]) == ("BYTES", "image")
    assert "image/jpeg" in image["parameters"]["accepts"]
    assert image["parameters"]["media_type"] == "image/png"
    assert file["parameters"]["content"] == "file"
    assert "parameters" not in about["outputs"][0]
    assert listed["inputs"][0]["parameters"] == image["parameters"]
    assert listed["examples"][0]["image"]["b64"]
    assert listed["examples"][0]["file"] == "(100000 bytes)"
