// How results are ranked: by how many of the words that were asked for stand in one heading of the page, then by what kind
// of page it is. Who asks how to do a thing wants neither the reason for it nor a byte.
const KINDS = [
  [/^(how-to|tutorials)\/|^tutorial$|^troubleshooting$|^faq$/, 6],
  [/^(explanation\/(performance|files)|CHANGELOG|CONTRIBUTING|changes)/, -10],
  [/^decisions\//, -10],
  [/^formats\/|^reference\/(api|files)/, -6],
];

var Scorer = {
  score: (item) => {
    const [page, title, , , found, , kind] = item;
    const heading = bestHeading(page);
    if (kind === SearchResultKind.text && heading.covered > 0 && heading.id && heading.title !== title) {
      item[1] = `${title} > ${heading.title}`;
      item[2] = heading.id;
    }
    const rank = KINDS.find(([pages]) => pages.test(page))?.[1] ?? 0;
    return found + 20 * heading.covered + rank;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// The heading of a page that has most of the words, and which share of them, a little more if it has few others.
function bestHeading(page) {
  const stemmer = new Stemmer();
  const stems = (text) =>
    splitQuery(text.toLowerCase()).filter((word) => !stopwords.has(word)).map((word) => stemmer.stemWord(word));
  const asked = stems(document.querySelector("input[name=q]").value);
  const number = Search._index.docnames.indexOf(page);
  let best = { covered: 0, title: "", id: "" };
  for (const [title, places] of Object.entries(Search._index.alltitles))
    for (const [file, id] of places) {
      if (file !== number) continue;
      const words = stems(title);
      const shared = asked.filter((word) => words.includes(word)).length;
      const covered = shared / asked.length + (0.1 * shared) / Math.max(words.length, 1);
      if (shared && covered > best.covered) best = { covered, title, id: id === null ? "" : `#${id}` };
    }
  return best;
}
