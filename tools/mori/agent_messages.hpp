// What the launcher and its agents on hosts tell each other, over the agents' standard input and
// output.
//
// An agent says `kAgentGreeting` first: what comes before it is a login's own words. Then messages
// follow each other: payload length (4 bytes, little-endian), type (1 byte), payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/status.hpp"
#include "mori/shmem/types.hpp"
#include "pe_output.hpp"
#include "process_setup.hpp"

namespace mori::launcher {

/// Changes with every change of the messages.
inline constexpr std::uint32_t kAgentProtocol = 1;
inline constexpr std::string_view kAgentGreeting{"\0mori agent\0", 12};

enum class MessageType : std::uint8_t {
  // To an agent.
  kWork = 1,        ///< AgentWork: once, after its hello
  kStart = 2,       ///< Meeting: once, when all agents are ready
  kSignal = 3,      ///< SignalOrder
  kEndOrphans = 4,  ///< SignalOrder, of which the signal counts
  kInput = 5,       ///< bytes for its first PE, after it wants some; none: the end
  kFlow = 6,        ///< FlowOrder
  // From an agent.
  kHello = 32,      ///< AgentHello
  kReady = 33,      ///< Meeting; of use from the agent that opens it
  kFailed = 34,     ///< AgentFailure
  kOutput = 35,     ///< OutputPiece
  kOutputEnd = 36,  ///< OutputPiece without bytes
  kEnd = 37,        ///< EndNotice
  kWantInput = 38,  ///< no payload
  kOver = 39,       ///< no payload: all that it started is gone, and all output was sent
};

struct Message {
  MessageType type;
  shmem::Bytes payload;
};

std::string EncodeMessage(MessageType type, shmem::ByteView payload = {});

/// Cuts what comes into messages.
class MessageReader {
 public:
  /// @param max_payload_bytes  a longer message is none
  explicit MessageReader(std::size_t max_payload_bytes) : max_payload_bytes_(max_payload_bytes) {}

  void Add(std::string_view bytes);
  /// The next whole message, if there is one. @return kInvalidArgument where none can begin; the
  /// same from then on
  shmem::Result<std::optional<Message>> Next();

 private:
  std::size_t max_payload_bytes_;
  std::string received_;
  std::size_t taken_ = 0;  // bytes of received_ that were messages
};

/// Of messages to an agent: the environment and the arguments of a program fit.
inline constexpr std::size_t kMaxWorkBytes = std::size_t{16} << 20;
/// Of messages from an agent.
inline constexpr std::size_t kMaxReplyBytes = std::size_t{1} << 20;

struct AgentHello {
  std::uint32_t protocol = kAgentProtocol;
  std::string version;  ///< of MORI Shmem
};

/// What the host does in the run.
struct AgentWork {
  std::string folder;                    ///< working directory
  std::vector<std::string> environment;  ///< "NAME=value", added to what the agent has
  std::vector<std::string> command;      ///< program and arguments
  PeShare share;
  bool is_alone = false;       ///< no other host is in the run
  bool opens_meeting = false;  ///< serves the unique id
  bool has_input = false;      ///< its first PE reads standard input
};

/// Where PEs find each other.
struct Meeting {
  std::optional<shmem::UniqueId> id;
  std::string master_address;  ///< for programs of torch; empty: as the environment has it
  std::string master_port;
};

struct SignalOrder {
  int signal = 0;
  bool to_groups = false;  ///< to all that PEs started, too
};

enum class Flow : std::uint8_t { kOpen = 0, kPaused = 1, kClosed = 2 };
struct FlowOrder {
  StreamKind kind = StreamKind::kOut;
  Flow flow = Flow::kOpen;
};

struct AgentFailure {
  std::string text;
  int exit_status = 1;  ///< 1 to 255
};

struct OutputPiece {
  int pe = 0;
  StreamKind kind = StreamKind::kOut;
  std::string bytes;
};

struct EndNotice {
  int pe = 0;
  int wait_status = 0;  ///< of a process that exited, or was killed
};

shmem::Bytes Encode(const AgentHello& hello);
shmem::Bytes Encode(const AgentWork& work);
shmem::Bytes Encode(const Meeting& meeting);
shmem::Bytes Encode(const SignalOrder& order);
shmem::Bytes Encode(const FlowOrder& order);
shmem::Bytes Encode(const AgentFailure& failure);
shmem::Bytes Encode(const OutputPiece& piece);
shmem::Bytes Encode(const EndNotice& notice);

/// The inverse of `Encode()`; empty for a payload that holds no such thing, or a value out of
/// range.
template <typename T>
std::optional<T> Decode(shmem::ByteView payload);

template <>
std::optional<AgentHello> Decode(shmem::ByteView payload);
template <>
std::optional<AgentWork> Decode(shmem::ByteView payload);
template <>
std::optional<Meeting> Decode(shmem::ByteView payload);
template <>
std::optional<SignalOrder> Decode(shmem::ByteView payload);
template <>
std::optional<FlowOrder> Decode(shmem::ByteView payload);
template <>
std::optional<AgentFailure> Decode(shmem::ByteView payload);
template <>
std::optional<OutputPiece> Decode(shmem::ByteView payload);
template <>
std::optional<EndNotice> Decode(shmem::ByteView payload);

}  // namespace mori::launcher
