// How the search orders its results: Sphinx' own scores, then guides before reference, and decisions last.
var Scorer = {
  score: ([docname, title, anchor, descr, score]) => {
    const folder = docname.split("/")[0];
    return score + ({"how-to": 4, tutorials: 4, explanation: 2, adr: -4}[folder] ?? 0);
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
