// What the reader chose stands after the # of the address, so that a link shows the same, and back and forward work.

const address = { kept: null }; // the state that was written last

// Write a state. The first one, and what an address led to, takes the place of the entry that is there.
function keepAddress(state, replace = false) {
  const hash = "#" + state;
  if (hash === address.kept) return;
  history[replace || address.kept === null ? "replaceState" : "pushState"](null, "", hash);
  address.kept = hash;
}

// What stands there now, by name. A bare name of a head is a link of an older page.
function readAddress() {
  const hash = location.hash.slice(1);
  const head = headByName.has(decoded(hash)) ? decoded(hash) : null;
  return new URLSearchParams(head ? { head } : hash.includes("=") ? hash : "");
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // half of a code
  }
}

// Call `enter` when another address is entered: back, forward, or by hand. A link to a place of the page is none.
function onAddress(enter) {
  addEventListener("hashchange", () => {
    const place = location.hash.slice(1);
    if (location.hash === address.kept || (place && byId(place) && !headByName.has(place))) return;
    address.kept = location.hash;
    enter();
  });
}

// The selects whose choice is kept where it is not the usual one.
const usual = {};
function keepSelects(state) {
  for (const [id, own] of Object.entries(usual)) if (byId(id).value !== own) state.set(id, byId(id).value);
}
function readSelects(state) {
  for (const [id, own] of Object.entries(usual)) {
    byId(id).value = state.get(id) ?? own;
    if (byId(id).selectedIndex < 0) byId(id).value = own; // of another page
  }
}
