// Thread checking of what is not instrumented. Linked into every test program; used where the
// thread sanitizer looks.

/// Asked by the thread sanitizer when it starts. libfabric's own locks are not seen, so its calls
/// of the C library say nothing; what it orders for its callers they tell themselves. At exit it
/// unlocks what was not seen to be locked.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libfabric.so.1\nmutex:_dl_call_fini\n";
}
