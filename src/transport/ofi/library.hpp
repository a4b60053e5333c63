// libfabric, opened at run time: what is not there is an error, and no failure to start.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace mori::shmem::ofi {

/// The functions that libfabric exports; all else of its headers is inline.
struct Library {
  decltype(&::fi_getinfo) get_info = nullptr;
  decltype(&::fi_freeinfo) free_info = nullptr;
  decltype(&::fi_dupinfo) duplicate_info = nullptr;
  decltype(&::fi_fabric) open_fabric = nullptr;
  decltype(&::fi_strerror) error_text = nullptr;
  decltype(&::fi_version) version = nullptr;

  /// "1.17"
  std::string VersionText() const;
  /// "Connection refused (errno 111)", of a code of either sign.
  std::string ErrorText(long code) const;
  /// Success of 0; otherwise an error: `what` and the library's text.
  Status Check(long result, std::string_view what) const;
};

/// Opens it with the first call of the process, and keeps it. Signal handlers stay what they were.
/// @return kUnsupported if it is not there or too old
Result<const Library*> OpenLibrary();

}  // namespace mori::shmem::ofi
