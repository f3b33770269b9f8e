// What the reader chose stands after the # of the address, so that a link shows the same, and back and forward work.

const address = { kept: null, entering: true }; // the state that was written last; whether it follows from an address

// Write a state. What follows from an address takes its place.
function keepAddress(state) {
  const hash = "#" + state;
  if (hash === address.kept) return;
  history[address.entering ? "replaceState" : "pushState"](null, "", hash);
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

// Call `enter` now and when another address is entered: back, forward, or by hand. A link to a place of the page is none.
function onAddress(enter) {
  const follow = () => {
    address.entering = true;
    enter();
    address.entering = false;
  };
  addEventListener("hashchange", () => {
    const place = location.hash.slice(1);
    if (location.hash === address.kept || (place && byId(place) && !headByName.has(place))) return;
    address.kept = location.hash;
    follow();
  });
  follow();
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
