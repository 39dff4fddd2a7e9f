// How results are ranked: by how much of what was asked for stands in one heading of the page, where a rare word counts for
// more, and then by what kind of page it is. Who asks how to do a thing wants neither the reason for it nor a byte.
const KINDS = [
  [/(^|\/)index$/, -8],
  [/^(how-to|tutorials)\/|^(tutorial|troubleshooting|faq)$/, 6],
  [/^(explanation\/performance|reference\/files|CHANGELOG|CONTRIBUTING)/, -10],
  [/^decisions\//, -10],
  [/^reference\/settings/, -4],
  [/^(formats|reference\/api)\//, -6],
];
const NAME = /[A-Z_.]/; // a name of the API, and not a word

var Scorer = {
  score: (item) => {
    const [page, title, , , found, , kind] = item;
    const rank = KINDS.find(([pages]) => pages.test(page))?.[1] ?? 0;
    if (kind === SearchResultKind.object) return found + (NAME.test(asked()) ? 40 : rank);
    const heading = bestHeading(page);
    if (kind === SearchResultKind.text && heading.id && heading.title !== title) {
      item[1] = `${title} > ${heading.title}`;
      item[2] = heading.id;
    }
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

const asked = () => document.querySelector("input[name=q]").value;

const stemsOf = (text) => {
  const stemmer = new Stemmer();
  return splitQuery(text.toLowerCase())
    .filter((word) => !stopwords.has(word))
    .map((word) => stemmer.stemWord(word));
};

// How rare a stem is: 1 if one page has it, almost 0 if all have.
function rarity(stem) {
  const pages = Search._index.terms[stem] ?? Search._index.titleterms[stem] ?? [];
  const all = Search._index.docnames.length;
  return Math.log((all + 1) / (Array.isArray(pages) ? pages.length : 1)) / Math.log(all + 1);
}

// The heading of a page that has, with its title, most of what was asked for, and which part, a little more if it says little else.
function bestHeading(page) {
  const wanted = stemsOf(asked()).map((stem) => [stem, rarity(stem) + 0.05]);
  const whole = wanted.reduce((sum, [, weight]) => sum + weight, 0);
  const number = Search._index.docnames.indexOf(page);
  const ofPage = Search._index.titles[number];
  const above = stemsOf(ofPage);
  let best = { covered: 0, title: "", id: "" };
  for (const [title, places] of Object.entries(Search._index.alltitles))
    for (const [file, id] of places) {
      if (file !== number) continue;
      const words = stemsOf(title);
      if (!wanted.some(([stem]) => words.includes(stem))) continue;
      const shared = wanted.filter(([stem]) => words.includes(stem) || above.includes(stem));
      const part = shared.reduce((sum, [, weight]) => sum + weight, 0) / whole;
      const covered = part + (0.1 * shared.length) / words.length + (title === ofPage ? 0.1 : 0);
      if (covered > best.covered) best = { covered, title, id: id === null ? "" : `#${id}` };
    }
  return best;
}
