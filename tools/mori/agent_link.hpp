// The launcher's end of the pipes to one agent.
#pragma once

#include <poll.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "agent_messages.hpp"
#include "base/status.hpp"
#include "base/unique_fd.hpp"

namespace mori::launcher {

/// Messages both ways, and what the way to the agent says beside them. Never blocks.
class AgentLink {
 public:
  /// The non-blocking ends of the pipes to its standard streams.
  AgentLink(shmem::UniqueFd to_agent, shmem::UniqueFd from_agent, shmem::UniqueFd errors);

  /// Sends as much as the pipe takes, the rest when it takes more. Lost where nobody reads.
  void Send(MessageType type, shmem::ByteView payload = {});
  /// The agent gets the end of its input, and what is not sent yet is dropped.
  void CloseInput() { to_agent_.Reset(); }

  static constexpr std::size_t kPolls = 3;
  void FillPolls(std::span<pollfd> polls) const;
  void Transfer(std::span<const pollfd> polls);
  /// Takes what the pipes hold now and closes them.
  void ReadOut();

  /// The next message, if there is one. @return kInvalidArgument where there is something else
  shmem::Result<std::optional<Message>> Next();
  /// The end of what was said that is no message, as one line; empty if nothing was.
  std::string Words() const;

 private:
  void Write();
  /// @return whether there may be more
  bool Read(shmem::UniqueFd& fd);
  void TakeOutput(std::string_view bytes);
  void TakeWords(std::string_view bytes);

  shmem::UniqueFd to_agent_;
  shmem::UniqueFd from_agent_;
  shmem::UniqueFd errors_;
  std::string unsent_;
  bool has_greeted_ = false;
  std::string before_greeting_;  // what may be the begin of it
  MessageReader reader_{kMaxReplyBytes};
  std::string words_;
};

}  // namespace mori::launcher
