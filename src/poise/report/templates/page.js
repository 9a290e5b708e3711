// Choosing a setting or a dataset hides the rest; without this script everything is shown.
const choose = document.querySelectorAll(".filters select");
for (const select of choose) {
  select.closest("label").hidden = false;
  select.addEventListener("change", () => {
    for (const part of document.querySelectorAll("[data-setting], [data-dataset]")) {
      if (part.dataset[select.name] === select.value) part.open = true;
      part.hidden = [...choose].some(each => each.value && part.dataset[each.name] && part.dataset[each.name] !== each.value);
    }
  });
}
