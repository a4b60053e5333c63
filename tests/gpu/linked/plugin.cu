// A shared library that is opened by name, and is not linked against libmori_shmem.so itself.
#include "exchange.cuh"

extern "C" __attribute__((visibility("default"))) bool ExchangeInPlugin() { return Exchange(); }
