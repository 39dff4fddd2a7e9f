// Fills the switch of versions from `versions.json` in the folder above this site, if that can be read.
document.addEventListener("DOMContentLoaded", async () => {
  const place = document.querySelector(".versions select");
  if (!place || !location.protocol.startsWith("http")) return;
  const root = new URL(document.documentElement.dataset.content_root ?? "./", location.href);
  const answer = await fetch(new URL("../versions.json", root)).catch(() => null);
  if (!answer?.ok) return;
  const own = place.value;
  for (const version of await answer.json()) if (version !== own) place.add(new Option(version, version));
  place.disabled = place.options.length < 2;
  place.addEventListener("change", () => {
    location.href = new URL(`../${place.value}/${location.href.slice(root.href.length)}`, root).href;
  });
});
