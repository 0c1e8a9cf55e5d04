"""How long does a batch take, by its rows and the size of the longest?"""

from __future__ import annotations

#: Batches after which what was seen has lost two thirds of its weight.
MEMORY = 128
#: Batches after which the parts are worked out anew, ...
EACH = 16
#: ... and its rounds, each from the last result: what the batches do not tell apart stays.
ROUNDS = 8

#: A part by rows or by the size alone explains this share of what it could: the rest of what the
#: batches do not tell apart goes to the work, in time.
LESS = 0.98


class PaddedSeconds:
    """Fits seconds = each + by_row * rows + by_size * longest + by_work * rows * longest.

    No part is below 0. Least squares over the latest batches, weighted as their noise is in
    proportion to their seconds. Where rows and sizes have not differed enough to tell parts
    apart, all is taken to go by the work.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.by_work = self.each = self.by_row = self.by_size = 0.0
        self._usual = 0.0
        # Decayed sums of products of work w, 1 (n), rows r, size s, and of these with seconds.
        self._ww = self._wn = self._wr = self._ws = 0.0
        self._nn = self._nr = self._ns = self._rr = self._rs = self._ss = 0.0
        self._wt = self._nt = self._rt = self._st = 0.0

    def seconds(self, rows: float, longest: float) -> float:
        """Of a batch; 0.0 while nothing is known."""
        return self.each + self.by_row * rows + (self.by_size + self.by_work * rows) * longest

    def learn(self, rows: float, longest: float, seconds: float) -> None:
        """A batch has run."""
        self.batches += 1
        self._usual += max(0.1, 1 / self.batches) * (seconds - self._usual)
        keep, weight = 1 - 1 / MEMORY, self._usual**-2
        n, r, s, w = weight, weight * rows, weight * longest, weight * rows * longest
        self._ww = keep * self._ww + w * rows * longest
        self._wn = keep * self._wn + w
        self._wr = keep * self._wr + w * rows
        self._ws = keep * self._ws + w * longest
        self._nn = keep * self._nn + n
        self._nr = keep * self._nr + r
        self._ns = keep * self._ns + s
        self._rr = keep * self._rr + r * rows
        self._rs = keep * self._rs + r * longest
        self._ss = keep * self._ss + s * longest
        self._wt = keep * self._wt + w * seconds
        self._nt = keep * self._nt + n * seconds
        self._rt = keep * self._rt + r * seconds
        self._st = keep * self._st + s * seconds
        if self.batches % EACH == 0 or self.batches < EACH:
            self._fit()

    def _fit(self) -> None:
        """Improve one part after the other, the others as they are (coordinate descent)."""
        w, n, r, s = self.by_work, self.each, self.by_row, self.by_size
        for _ in range(ROUNDS):
            w = max(0.0, self._wt - self._wn * n - self._wr * r - self._ws * s) / self._ww
            n = max(0.0, self._nt - self._wn * w - self._nr * r - self._ns * s) / self._nn
            r = max(0.0, LESS * self._rt - self._wr * w - self._nr * n - self._rs * s) / self._rr
            s = max(0.0, LESS * self._st - self._ws * w - self._ns * n - self._rs * r) / self._ss
        self.by_work, self.each, self.by_row, self.by_size = w, n, r, s
