//! Linker settings of libdromon.so.
//!
//! The names the server looks up are exported by `dromon_wsrep::export_provider!` in
//! this crate; nothing else may be visible inside mariadbd. rustc writes the version
//! script itself and would also list `#[no_mangle]` names of dependencies (a second
//! script is refused by GNU ld and merged by lld), so symbols that come from the
//! libraries linked in are hidden instead. Check: `nm -D --defined-only libdromon.so`
//! shows nine names, all beginning with `wsrep_`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // The server closes the library at its end; thread-local destructors must not be
    // unmapped under it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
