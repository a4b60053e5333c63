#include "host_list.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <unordered_map>

#include "base/text.hpp"

namespace mori::launcher {
namespace {

using shmem::Error;
using shmem::ErrorCode;
using shmem::Quote;
using shmem::Result;
using shmem::Status;

/// That of names and addresses, with a user in front.
constexpr std::size_t kMaxNameBytes = 512;
constexpr std::string_view kBlanks = " \t\r";

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_' || c == '@' || c == '%' || c == ':';
}

/// A name that ssh cannot take for an option, and that no shell would read in another way.
bool IsName(std::string_view name) {
  const std::size_t at = name.rfind('@');
  const std::string_view host = at == std::string_view::npos ? name : name.substr(at + 1);
  const bool has_user = at != std::string_view::npos;
  return !host.empty() && host.front() != '-' && name.size() <= kMaxNameBytes &&
         std::ranges::all_of(name, IsNameCharacter) &&
         (!has_user || (at > 0 && name.front() != '-'));
}

std::optional<int> PesIn(std::string_view text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool is_number = error == std::errc() && stop == end;
  return is_number && value >= 1 && value <= kMaxPes ? std::optional(value) : std::nullopt;
}

Result<HostShare> MakeShare(std::string_view name, std::optional<std::string_view> count) {
  if (!IsName(name)) return Error(ErrorCode::kInvalidArgument, "{} is no host", Quote(name));
  if (!count) return HostShare{std::string(name), 1};
  const std::optional<int> n_pes = PesIn(*count);
  if (!n_pes) {
    return Error(ErrorCode::kInvalidArgument, "{} after host {} is no number of PEs from 1 to {}",
                 Quote(*count), name, kMaxPes);
  }
  return HostShare{std::string(name), *n_pes};
}

Result<HostShare> ParseBracketed(std::string_view entry) {
  const std::size_t close = entry.find(']');
  const std::string_view rest =
      close == std::string_view::npos ? std::string_view("x") : entry.substr(close + 1);
  if (!rest.empty() && rest.front() != ':') {
    return Error(ErrorCode::kInvalidArgument,
                 "{} is no host: an address in brackets is written as in [fd00::1]:2",
                 Quote(entry));
  }
  const std::string_view address = entry.substr(1, close - 1);
  return MakeShare(address, rest.empty() ? std::nullopt : std::optional(rest.substr(1)));
}

Result<HostShare> ParseEntry(std::string_view entry) {
  if (entry.starts_with('[')) return ParseBracketed(entry);
  const std::size_t colon = entry.find(':');
  if (colon != entry.rfind(':')) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} has several colons: an IPv6 address is put in brackets, as in [fd00::1]:2",
                 Quote(entry));
  }
  if (colon == std::string_view::npos) return MakeShare(entry, std::nullopt);
  return MakeShare(entry.substr(0, colon), entry.substr(colon + 1));
}

/// A list as it grows.
class Hosts {
 public:
  Status Add(HostShare share) {
    const auto [place, is_new] = places_.try_emplace(share.name, list_.size());
    if (n_pes_ + share.n_pes > kMaxPes) {
      return Error(ErrorCode::kInvalidArgument,
                   "with host {} there are {} PEs, and a run has {} at most", share.name,
                   n_pes_ + share.n_pes, kMaxPes);
    }
    n_pes_ += share.n_pes;
    if (is_new) {
      list_.push_back(std::move(share));
    } else {
      list_[place->second].n_pes += share.n_pes;
    }
    return Status();
  }
  HostList Take() { return std::move(list_); }

 private:
  HostList list_;
  std::unordered_map<std::string, std::size_t> places_;
  int n_pes_ = 0;
};

std::string_view Trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// A line without its comment; neither empty nor with blanks around it.
Result<HostShare> ParseLine(std::string_view line) {
  constexpr std::string_view kSlots = "slots=";
  const std::size_t blank = line.find_first_of(kBlanks);
  if (blank == std::string_view::npos) return ParseEntry(line);
  const std::string_view name = line.substr(0, blank), rest = Trimmed(line.substr(blank));
  if (!rest.starts_with(kSlots) || rest.find_first_of(kBlanks) != std::string_view::npos) {
    return Error(ErrorCode::kInvalidArgument, "{} is no host: a line is as in a, a:2 or a slots=2",
                 Quote(line));
  }
  return MakeShare(name, rest.substr(kSlots.size()));
}

}  // namespace

Result<HostList> ParseHosts(std::string_view text) {
  Hosts hosts;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    if (entry.empty()) {
      return Error(ErrorCode::kInvalidArgument, "a host is missing in {}: they are named as in {}",
                   Quote(text), "a:2,b:2");
    }
    MORI_ASSIGN_OR_RETURN(HostShare share, ParseEntry(entry));
    MORI_RETURN_IF_ERROR(hosts.Add(std::move(share)));
    if (comma == std::string_view::npos) return hosts.Take();
    rest.remove_prefix(comma + 1);
  }
}

Result<HostList> ParseHostfile(std::string_view text) {
  Hosts hosts;
  int number = 0;
  const auto add = [&](std::string_view line) {
    Result<HostShare> share = ParseLine(line);
    return share.ok() ? hosts.Add(std::move(*share)) : share.status();
  };
  for (std::string_view rest = text; !rest.empty();) {
    ++number;
    const std::size_t end = rest.find('\n');
    const std::string_view whole = rest.substr(0, end);
    const std::string_view line = Trimmed(whole.substr(0, whole.find('#')));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.empty()) continue;
    if (const Status status = add(line); !status.ok())
      return Error(ErrorCode::kInvalidArgument, "line {}: {}", number, status.message());
  }
  HostList list = hosts.Take();
  if (list.empty()) return Error(ErrorCode::kInvalidArgument, "it names no host");
  return list;
}

Result<HostList> ReadHostfile(const std::string& path) {
  constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;
  std::ifstream file(path);
  if (!file) return Status::FromErrno(errno, "cannot read it");
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return Status::FromErrno(errno, "cannot read it");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes)
    return Error(ErrorCode::kInvalidArgument, "it has more than {} bytes", kMaxFileBytes);
  return ParseHostfile(text);
}

Result<HostList> FirstPlaces(const HostList& hosts, int n_pes) {
  HostList first;
  int left = n_pes;
  for (const HostShare& share : hosts) {
    if (left == 0) break;
    first.push_back({share.name, std::min(left, share.n_pes)});
    left -= first.back().n_pes;
  }
  if (left > 0) {
    return Error(ErrorCode::kInvalidArgument, "{} PEs are asked for, and the hosts take {}", n_pes,
                 CountPes(hosts));
  }
  return first;
}

int CountPes(const HostList& hosts) {
  int sum = 0;
  for (const HostShare& share : hosts) sum += share.n_pes;
  return sum;
}

}  // namespace mori::launcher
