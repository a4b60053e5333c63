// Init over an MPI communicator (guide, section 2, method 3). Header-only: a program that includes
// this is built with its MPI, the library with none.
//
// MPI belongs to the program: it is initialised before and finalised after, here it carries the
// unique id and nothing else. `MPI_THREAD_SINGLE` is enough, as only the calling thread uses MPI,
// and only during these calls. The communicator may be freed afterwards. A program that ends
// without its own `MPI_Finalize()` fails in the eyes of mpirun, whatever this library was used for.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "mori/shmem/detail.hpp"
#include "mori/shmem/shmem_api.hpp"

namespace mori::shmem {
namespace detail {

/// What one rank of the communicator tells all others.
struct MpiMessage {
  int code = 0;  ///< an `ErrorCode`: that rank cannot go on
  UniqueId id{};
  char text[512] = {};

  void Refuse(ErrorCode why, const std::string& sentence) {
    code = static_cast<int>(why);
    const std::size_t length = std::min(sentence.size(), sizeof(text) - 1);
    std::memcpy(text, sentence.data(), length);
    text[length] = '\0';
  }
};

/// Why MPI cannot be used, as a reported error; 0 if it can. Local.
inline int CheckMpi(MPI_Comm comm) {
  int is_initialized = 0;
  int is_finalized = 0;
  int is_inter = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  if (is_initialized == 0) {
    return ReportError(ErrorCode::kInvalidArgument,
                       "MPI is not initialised: call MPI_Init() before");
  }
  if (is_finalized != 0) {
    return ReportError(ErrorCode::kInvalidArgument,
                       "MPI is finalised already: its communicators are of no use any more");
  }
  if (comm == MPI_COMM_NULL) {
    return ReportError(ErrorCode::kInvalidArgument,
                       "the communicator is MPI_COMM_NULL: this process is not in it");
  }
  MPI_Comm_test_inter(comm, &is_inter);
  if (is_inter == 0) return 0;
  return ReportError(ErrorCode::kInvalidArgument,
                     "the communicator is an inter-communicator: merge it before");
}

/// The error of an MPI call, where the communicator's handler lets it return.
inline int ReportMpiError(const char* call, int mpi_code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(mpi_code, text, &length);
  return ReportError(ErrorCode::kSystem, (std::string(call) + " failed: " + text).c_str());
}

/// Objections of this rank to its own arguments.
inline MpiMessage CheckMpiArguments(InitFlag flag, int rank, int world_size, int mpi_rank,
                                    int mpi_size) {
  const auto of = [](int r, int n) { return std::to_string(r) + " of " + std::to_string(n); };
  MpiMessage message;
  if (flag != MORI_SHMEM_INIT_WITH_MPI_COMM) {
    message.Refuse(ErrorCode::kInvalidArgument,
                   "flag " + std::to_string(static_cast<unsigned>(flag)) +
                       " does not go with a communicator: that is MORI_SHMEM_INIT_WITH_MPI_COMM, "
                       "0");
  } else if (rank != mpi_rank || world_size != mpi_size) {
    message.Refuse(ErrorCode::kInvalidArgument,
                   "rank is " + of(rank, world_size) +
                       ", but in the communicator this process is rank " + of(mpi_rank, mpi_size));
  } else if (ShmemInitialized() && (ShmemMyPe() != rank || ShmemNPes() != world_size)) {
    message.Refuse(ErrorCode::kAlreadyInitialized,
                   "this process is PE " + of(ShmemMyPe(), ShmemNPes()) +
                       " already: it cannot become rank " + of(rank, world_size) +
                       " before ShmemFinalize()");
  }
  return message;
}

/// Rank 0 makes the id of the new world and sends it to all others, or `root` its objection.
/// @return 0 with the id in `own`, or the reported error.
inline int ShareMpiMessage(MpiMessage& own, bool makes_id, int root, MPI_Comm comm) {
  const int make_code = makes_id ? ShmemGetUniqueId(&own.id) : 0;
  if (make_code != 0) {
    own.Refuse(static_cast<ErrorCode>(make_code),
               std::string("no unique id could be made: ") + ShmemLastError());
  }
  MpiMessage shared = own;
  const int mpi_code = MPI_Bcast(&shared, sizeof(shared), MPI_BYTE, root, comm);
  if (make_code != 0) return make_code;  // reported where it was made
  if (mpi_code != MPI_SUCCESS) return ReportMpiError("MPI_Bcast", mpi_code);
  if (own.code != 0) return ReportError(static_cast<ErrorCode>(own.code), own.text);
  if (shared.code != 0) {
    const std::string who = "rank " + std::to_string(root) + " of the communicator cannot go on: ";
    return ReportError(static_cast<ErrorCode>(shared.code), (who + shared.text).c_str());
  }
  own.id = shared.id;
  return 0;
}

/// `ShmemInitAttr()` over MPI, where MPI, the communicator, its rank and size are known to be fine.
inline int InitOverMpi(InitFlag flag, int rank, int world_size, int mpi_rank, int mpi_size,
                       MPI_Comm comm) {
  MpiMessage own = CheckMpiArguments(flag, rank, world_size, mpi_rank, mpi_size);
  // One reduction tells all ranks whether one of them cannot go on, and which have a PE already.
  const int has_pe = ShmemInitialized() ? 1 : 0;
  int least[3] = {own.code != 0 ? mpi_rank : mpi_size, has_pe, -has_pe};
  const int mpi_code = MPI_Allreduce(MPI_IN_PLACE, least, 3, MPI_INT, MPI_MIN, comm);
  if (mpi_code != MPI_SUCCESS) return ReportMpiError("MPI_Allreduce", mpi_code);
  const bool refused = least[0] < mpi_size;
  if (!refused && least[1] == 1) return 0;
  if (!refused && least[2] == -1) {
    return ReportError(ErrorCode::kMismatch,
                       "some ranks of the communicator are initialised already, others are not");
  }
  const int root = refused ? least[0] : 0;
  const int code = ShareMpiMessage(own, !refused && mpi_rank == 0, root, comm);
  return code != 0 ? code : ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, rank, world_size, own.id);
}

}  // namespace detail

/// Joins the ranks of `comm` as PEs of the same numbers. Collective over `comm`; otherwise as
/// `ShmemInitAttr()` with a unique id, which rank 0 makes and MPI carries. If one rank cannot go on
/// all of them return an error that says why.
///
/// Again while initialised, by all ranks and with the same rank and size: 0, nothing changes.
/// @param flag  MORI_SHMEM_INIT_WITH_MPI_COMM
/// @param rank, world_size  those of `comm`
/// @param comm  an intra-communicator, used during the call only
/// @return also kInvalidArgument where MPI is not initialised or already finalised, or `comm` is
///   MPI_COMM_NULL or an inter-communicator (local: what other ranks do is MPI's rule);
///   kAlreadyInitialized, kMismatch for ranks that are PEs of another world; kSystem with the text
///   of an MPI call that failed, if the error handler of `comm` returns.
inline int ShmemInitAttr(InitFlag flag, int rank, int world_size, MPI_Comm comm) {
  if (const int code = detail::CheckMpi(comm); code != 0) return code;
  int mpi_rank = 0;
  int mpi_size = 0;
  MPI_Comm_rank(comm, &mpi_rank);
  MPI_Comm_size(comm, &mpi_size);
  return detail::InitOverMpi(flag, rank, world_size, mpi_rank, mpi_size, comm);
}

/// The same with rank and size of `comm`.
inline int ShmemMpiInit(MPI_Comm comm) {
  if (const int code = detail::CheckMpi(comm); code != 0) return code;
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  return ShmemInitAttr(MORI_SHMEM_INIT_WITH_MPI_COMM, rank, size, comm);
}

}  // namespace mori::shmem
