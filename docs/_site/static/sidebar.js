// Scrolls the sidebar to the entry of the open page, where it lists more pages than the window shows.
window.addEventListener("load", () => {
  const place = document.querySelector(".sidebar-scroll");
  const here = [...document.querySelectorAll(".sidebar-scroll .current-page > a")].pop();
  if (!place || !here) return;
  const [room, box] = [place.getBoundingClientRect(), here.getBoundingClientRect()];
  if (box.bottom > room.bottom) place.scrollBy({ top: box.top - room.top - room.height / 2, behavior: "instant" });
});
