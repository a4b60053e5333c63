// Keeps descriptors 0, 1 and 2 from becoming something else.
#pragma once

namespace mori::shmem {

/// Opens /dev/null as each of 0, 1 and 2 that is closed: otherwise the next socket would get that
/// number, and what the program or its logger prints would go into it. They stay open.
void OccupyStandardDescriptors();

}  // namespace mori::shmem
