import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The sum of one call and the difference of another, which run side by side."""

    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        calls = [
            pb_utils.InferenceRequest(
                model_name="add_sub", requested_output_names=[name], inputs=request.inputs()
            ).async_exec()
            for name in ("OUTPUT0", "OUTPUT1")
        ]
        answers = await asyncio.gather(*calls)
        for answer in answers:
            if answer.has_error():
                return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse(
            [
                pb_utils.get_output_tensor_by_name(answer, f"OUTPUT{i}")
                for i, answer in enumerate(answers)
            ]
        )
