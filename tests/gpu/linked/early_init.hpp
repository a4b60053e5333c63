#pragma once

#include "pes.hpp"

/// Two PEs whose init ran before main().
mori::shmem::testing::TwoPes* InitializedPes();
