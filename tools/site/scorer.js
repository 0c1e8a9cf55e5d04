// What somebody searches for is seldom in the changes: those come last.
const LATER = /^changelog/;
const SOONER = /^(how-to|tutorial|reference)/;

var Scorer = {
  score: ([page, , , , score]) => score * (LATER.test(page) ? 0.3 : SOONER.test(page) ? 1.5 : 1),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
