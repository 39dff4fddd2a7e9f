// Fills the switch of versions from `versions.json` in the folder above this site, if that can be read. It leads to the
// same page of the other version, or to its first one if it has no such page.
document.addEventListener("DOMContentLoaded", async () => {
  const place = document.querySelector(".versions select");
  if (!place || !location.protocol.startsWith("http")) return;
  const root = new URL(document.documentElement.dataset.content_root ?? "./", location.href);
  const answer = await fetch(new URL("../versions.json", root)).catch(() => null);
  if (!answer?.ok) return;
  const own = place.value;
  for (const version of await answer.json()) if (version !== own) place.add(new Option(version, version));
  place.disabled = place.options.length < 2;
  place.addEventListener("change", async () => {
    const first = new URL(`../${place.value}/`, root);
    const same = new URL(location.href.slice(root.href.length), first);
    const found = await fetch(same, { method: "HEAD" }).catch(() => null);
    location.href = (found?.ok ? same : first).href;
  });
});
