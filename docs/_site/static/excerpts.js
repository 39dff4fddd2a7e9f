// Gives the search its excerpts from `search-texts.js`: a browser that shows the site from a disk may load no page.
document.addEventListener("DOMContentLoaded", () => {
  window.fetch = (url) => {
    const page = decodeURI(String(url)).replace(/^(\.\.?\/)+/, "").replace(/\.html$/, "");
    return Promise.resolve({ text: () => Promise.resolve(page) });
  };
  Search.htmlToText = (page, anchor) => {
    const texts = SEARCH_TEXTS[page] ?? {};
    return (anchor && texts[anchor]) || texts[""] || Object.values(texts).join(" ");
  };
});
