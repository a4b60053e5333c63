#include "exchange.cuh"

bool ExchangeInSecondUnit() { return Exchange(); }
