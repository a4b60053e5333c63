// Bytes as a list of hosts, as a file of hosts, and as what the other end of an agent's pipe says.
#include <string_view>

#include "fuzz/check.hpp"
#include "mori/agent_messages.hpp"
#include "mori/host_list.hpp"

namespace {

using namespace mori::launcher;
namespace fuzz = mori::shmem::fuzz;
using mori::shmem::Bytes;

void CheckHosts(const mori::shmem::Result<HostList>& hosts) {
  fuzz::CheckMessage(hosts.status());
  if (!hosts.ok()) return;
  FUZZ_CHECK(!hosts->empty());
  FUZZ_CHECK(CountPes(*hosts) >= 1 && CountPes(*hosts) <= kMaxPes);
  for (const HostShare& share : *hosts) {
    FUZZ_CHECK(share.n_pes >= 1);
    FUZZ_CHECK(!share.name.empty() && share.name.front() != '-');
    FUZZ_CHECK(share.name.find_first_of(" \t\n'\"$`;&|<>()") == std::string::npos);
  }
}

/// What was understood is written as it came.
template <typename T>
void CheckPayload(const Bytes& payload) {
  const auto value = Decode<T>(payload);
  if (value) FUZZ_CHECK(Encode(*value) == payload);
}

void CheckMessages(std::string_view bytes) {
  MessageReader reader(kMaxReplyBytes);
  reader.Add(bytes);
  for (;;) {
    const auto message = reader.Next();
    fuzz::CheckMessage(message.status());
    if (!message.ok() || !message->has_value()) return;
    const Bytes& payload = (*message)->payload;
    CheckPayload<AgentHello>(payload);
    CheckPayload<AgentWork>(payload);
    CheckPayload<Meeting>(payload);
    CheckPayload<SignalOrder>(payload);
    CheckPayload<FlowOrder>(payload);
    CheckPayload<AgentFailure>(payload);
    CheckPayload<OutputPiece>(payload);
    CheckPayload<EndNotice>(payload);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckHosts(ParseHosts(text));
  CheckHosts(ParseHostfile(text));
  CheckMessages(text);
  return 0;
}
