"""What do annotations of images, audio and files say of a model's tensors?"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import PIL.Image
import pytest

import wherry
from wherry.core.models.signature import read_signature
from wherry.core.values.datatypes import BYTES, Form, TensorSpec
from wherry.core.values.media import AudioSpec, FileSpec, ImageSpec

Grey = Annotated[PIL.Image.Image, wherry.ImageSpec(mode="L")]


def spec_of(annotation: Any) -> TensorSpec:
    def model(x: Any) -> Any: ...

    model.__annotations__ = {"x": annotation, "return": annotation}
    signature = read_signature(model, "m")
    assert signature.inputs[0].media == signature.outputs[0].media
    return signature.inputs[0]


def test_the_name_in_annotations_is_pillows_own_class() -> None:
    assert wherry.Image is PIL.Image.Image


@pytest.mark.parametrize(
    ("annotation", "media", "rows"),
    [
        (list[wherry.Image], ImageSpec(), "columns"),
        (wherry.Image, ImageSpec(), "row"),
        (wherry.Image | None, ImageSpec(), "row"),
        (list[Grey], ImageSpec(mode="L"), "columns"),
        (
            Annotated[list[np.ndarray], wherry.ImageSpec(max_pixels=9)],
            ImageSpec(max_pixels=9, python="array"),
            "columns",
        ),
        (Annotated[np.ndarray, wherry.ImageSpec()], ImageSpec(python="array"), "row"),
        (Annotated[bytes, wherry.ImageSpec()], ImageSpec(python="bytes"), "row"),
        (list[wherry.Audio], AudioSpec(), "columns"),
        (
            Annotated[np.ndarray, wherry.AudioSpec(sample_rate=8000)],
            AudioSpec(sample_rate=8000, python="array"),
            "row",
        ),
        (wherry.Audio, AudioSpec(), "row"),
        (wherry.File, FileSpec(), "row"),
        (
            list[Annotated[wherry.File, wherry.FileSpec(max_bytes=3)]],
            FileSpec(max_bytes=3),
            "columns",
        ),
    ],
    ids=str,
)
def test_an_annotation_is_a_tensor_of_bytes_that_says_what_they_hold(
    annotation: Any, media: Any, rows: str
) -> None:
    spec = spec_of(annotation)

    assert (spec.datatype, spec.shape, spec.form) == (BYTES, (), Form.BYTES)
    assert spec.media == media


def classify(image: list[wherry.Image]) -> list[str]:
    return [str(one.size) for one in image]


def rows(image: wherry.Image, mask: Grey | None = None) -> wherry.Image:
    return image if mask is None else mask


def test_columns_and_rows_are_told_apart_and_a_default_makes_an_input_optional() -> None:
    assert not read_signature(classify, "m").row_wise
    signature = read_signature(rows, "m")
    assert signature.row_wise
    assert [spec.optional for spec in signature.inputs] == [False, True]
    assert signature.returns == "single"


def broken_array(x: Annotated[np.ndarray, wherry.AudioSpec()]) -> str: ...  # type: ignore[empty-body]
def broken_mode(x: Annotated[np.ndarray, wherry.ImageSpec(mode=None)]) -> str: ...  # type: ignore[empty-body]
def broken_kind(x: Annotated[wherry.Audio, wherry.ImageSpec()]) -> str: ...  # type: ignore[empty-body]
def broken_text(x: Annotated[str, wherry.FileSpec()]) -> str: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (broken_array, "np.ndarray with a sample_rate"),
        (broken_mode, "np.ndarray with a mode"),
        (broken_kind, "wherry.Image, bytes"),
        (broken_text, "wherry.File or bytes"),
    ],
)
def test_a_spec_beside_what_it_cannot_describe_is_refused(
    function: Callable[..., Any], remedy: str
) -> None:
    with pytest.raises(wherry.ConfigError, match=remedy):
        read_signature(function, "m")


@pytest.mark.parametrize(
    "make",
    [
        lambda: wherry.ImageSpec(mode="CMYK"),
        lambda: wherry.ImageSpec(formats=("eps",)),
        lambda: wherry.ImageSpec(format="gif"),
        lambda: wherry.ImageSpec(max_pixels=0),
        lambda: wherry.ImageSpec(quality=101),
        lambda: wherry.AudioSpec(sample_rate=0),
        lambda: wherry.AudioSpec(format="mp3"),
        lambda: wherry.AudioSpec(max_seconds=0),
        lambda: wherry.FileSpec(max_bytes=0),
        lambda: wherry.FileSpec(accepts=("csv",)),
    ],
)
def test_settings_that_make_no_sense_are_refused_where_they_are_written(
    make: Callable[[], object],
) -> None:
    with pytest.raises(wherry.ConfigError):
        make()


def test_samples_may_be_paths_which_are_read_with_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    PIL.Image.new("L", (2, 1)).save(path)

    @wherry.model(examples=[{"image": path}])
    def model(image: wherry.Image) -> str:
        return image.mode

    assert model.config().examples[0]["image"] == path.read_bytes()
    with pytest.raises(wherry.ConfigError, match=r"input 'image'.*examples"):
        model.config(examples=[{"image": tmp_path / "dog.png"}])
