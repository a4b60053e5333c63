// Text as an environment: a NAME=value each line.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace mori::shmem::fuzz {

inline std::vector<std::string> LinesOf(const std::uint8_t* data, std::size_t size) {
  std::istringstream text(std::string(reinterpret_cast<const char*>(data), size));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(std::move(line));
  return lines;
}

}  // namespace mori::shmem::fuzz
