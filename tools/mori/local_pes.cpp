#include "local_pes.hpp"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/text.hpp"
#include "bootstrap/address.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/unique_id.hpp"

namespace mori::launcher {

using shmem::Result;
using shmem::Status;
using shmem::UniqueFd;

namespace {

std::string CannotRunText(const std::string& program, int error_number) {
  const bool has_path = program.find('/') != std::string::npos;
  const std::string quoted = shmem::Quote(program, PATH_MAX);
  if (error_number == ENOENT && has_path && access(program.c_str(), F_OK) == 0) {
    return fmt::format("cannot run {}: the interpreter that it names does not exist", quoted);
  }
  if (error_number == ENOENT && !has_path) {
    return fmt::format("cannot run {}: no such program in PATH", quoted);
  }
  return fmt::format("cannot run {}: {}", quoted, std::strerror(error_number));
}

Result<shmem::UniqueId> OpenAnywhere(const shmem::Config& config) {
  MORI_RETURN_IF_ERROR(shmem::SelectOwnAddresses(config.socket_ifname).status());
  MORI_ASSIGN_OR_RETURN(const shmem::UniqueId id,
                        shmem::RendezvousService::Instance().Open(config));
  MORI_ASSIGN_OR_RETURN(const shmem::Rendezvous rendezvous, shmem::DecodeUniqueId(id));
  if (rendezvous.addresses.empty()) {
    return shmem::Error(shmem::ErrorCode::kSystem, "no address of this machine can be listened on");
  }
  return id;
}

}  // namespace

RunFailure CannotRun(const std::string& program, int error_number) {
  return {CannotRunText(program, error_number),
          error_number == ENOENT ? kExitNotFound : kExitCannotRun};
}

Result<std::optional<shmem::UniqueId>> OpenMeeting(const shmem::Config& config, int n_pes) {
  const Result<shmem::UniqueId> made = OpenAnywhere(config);
  if (made.ok()) return std::optional(*made);
  if (made.status().code() == shmem::ErrorCode::kInvalidConfig) return made.status();
  if (n_pes == 1) return std::optional<shmem::UniqueId>();
  return shmem::Error(shmem::ErrorCode::kSystem, "cannot open a port at which the PEs meet: {}",
                      made.status().message());
}

LocalPes::LocalPes(const SignalSource& signals, const Guard& guard, const rlimit& open_files,
                   PeOutput& output)
    : processes_(signals, guard, open_files), streams_(output) {}

void LocalPes::Start() {
  const StringArray arguments(plan_.command);
  for (int local_rank = 0; local_rank < plan_.share.count; ++local_rank) {
    if (!StartOne(local_rank, arguments)) return;
  }
}

bool LocalPes::StartOne(int local_rank, const StringArray& arguments) {
  const int pe = plan_.share.first + local_rank;
  const auto fail = [&](std::string_view why) {
    failure_ = RunFailure{fmt::format("cannot start PE {}: {}", pe, why), kExitError};
    return false;
  };
  Result<UniqueFd> input = InputFor(local_rank);
  if (!input.ok()) return fail(input.status().message());
  Result<Pipe> out = MakePipe();
  if (!out.ok()) return fail(out.status().message());
  Result<Pipe> err = MakePipe();
  if (!err.ok()) return fail(err.status().message());

  const StringArray environment(PeEnvironment(plan_.share, local_rank, plan_.id));
  const StartError error = processes_.Start({.arguments = arguments.data(),
                                             .environment = environment.data(),
                                             .input_fd = input->get(),
                                             .output_fd = out->write_end.get(),
                                             .error_fd = err->write_end.get()});
  if (error.in_program) {
    failure_ = CannotRun(plan_.command.front(), error.number);
    return false;
  }
  if (error.number != 0)
    return fail(fmt::format("cannot {}: {}", error.what, std::strerror(error.number)));

  for (const UniqueFd* read_end : {&out->read_end, &err->read_end}) {
    const Status status = MakeNonBlocking(*read_end);
    if (!status.ok()) return fail(status.message());
  }
  streams_.Add(pe, std::move(out->read_end), std::move(err->read_end));
  return true;
}

Result<UniqueFd> LocalPes::InputFor(int local_rank) {
  if (local_rank == 0 && plan_.input_for_first) {
    MORI_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
    MORI_RETURN_IF_ERROR(MakeNonBlocking(pipe.write_end));
    input_ = InputPump(std::move(pipe.write_end), *plan_.input_for_first);
    return std::move(pipe.read_end);
  }
  UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return Status::FromErrno(errno, "cannot open /dev/null");
  return null;
}

void LocalPes::FillPolls(std::span<pollfd> polls) {
  polls[0] = input_.Poll();
  streams_.FillPolls(polls.subspan(1));
}

void LocalPes::Transfer(std::span<const pollfd> polls) {
  input_.Transfer(polls[0]);
  streams_.Transfer(polls.subspan(1));
}

}  // namespace mori::launcher
