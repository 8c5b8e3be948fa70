for (const head of document.querySelectorAll("th")) head.onclick = () => {
  const body = head.closest("table").tBodies[0], place = head.cellIndex, up = head.ariaSort === "descending";
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.ariaSort = up ? "ascending" : "descending";
  const key = row => { const v = row.cells[place].dataset.value; return v === "" || isNaN(v) ? v : Number(v) };
  const order = (a, b) => a === b ? 0 : b === "" ? -1 : a === "" ? 1 : (a < b ? -1 : 1) * (up ? 1 : -1);
  [...body.rows].sort((a, b) => order(key(a), key(b))).forEach(row => body.append(row));
};
for (const section of document.querySelectorAll("section")) {
  const lines = [...section.querySelectorAll("[id^=row-]")];
  for (const part of section.querySelectorAll("[data-row]")) {
    const mine = new RegExp(`^row-${part.dataset.row}(-band)?$`);
    part.onmouseenter = () => lines.forEach(line => line.classList.toggle("dim", !mine.test(line.id)));
    part.onmouseleave = () => lines.forEach(line => line.classList.remove("dim"));
  }
}
const drawn = svg => {  // on its own it has no page to take colours from
  const alone = svg.cloneNode(true);
  alone.querySelectorAll(".dim").forEach(line => line.classList.remove("dim"));
  return new XMLSerializer().serializeToString(alone).replace(/var\(--\w+, (#\w+)\)/g, "$1");
};
for (const button of document.querySelectorAll("[data-save]")) button.onclick = () => {
  const plate = button.closest("[data-name]"), kind = button.dataset.save;
  const text = kind === "svg" ? drawn(plate.querySelector("svg")) : plate.querySelector(".numbers").textContent;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: kind === "svg" ? "image/svg+xml" : "text/csv"}));
  link.download = `${plate.dataset.name}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const measure = () => document.querySelectorAll(".wide").forEach(box =>
  box.parentNode.classList.toggle("scrolls", box.scrollWidth > box.clientWidth + 1));
addEventListener("resize", measure);
measure();
