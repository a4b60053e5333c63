#include "base/unique_fd.hpp"

#include <pthread.h>

#include <cerrno>
#include <mutex>
#include <vector>

namespace mori::shmem {
namespace {

/// The descriptors of this process that its forked children shall not have.
class Book {
 public:
  static Book& Instance() {
    static auto* const book = new Book;  // never destroyed: descriptors are closed at exit, too
    return *book;
  }

  std::mutex& mutex() { return mutex_; }

  // The rest needs the lock.
  std::uint32_t era() const { return era_; }
  void Note(int fd) {
    const auto index = static_cast<std::size_t>(fd);
    if (index >= noted_.size()) noted_.resize(index + 1);
    noted_[index] = true;
  }
  void Forget(int fd) { noted_[static_cast<std::size_t>(fd)] = false; }
  void CloseAllInChild() {
    for (std::size_t fd = 0; fd < noted_.size(); ++fd) {
      if (noted_[fd]) ::close(static_cast<int>(fd));
      noted_[fd] = false;
    }
    ++era_;
  }

 private:
  Book() {
    ::pthread_atfork([] { Instance().mutex().lock(); }, [] { Instance().mutex().unlock(); },
                     [] {
                       Instance().CloseAllInChild();
                       Instance().mutex().unlock();
                     });
  }

  std::mutex mutex_;
  std::vector<bool> noted_;  ///< by descriptor
  std::uint32_t era_ = 1;    ///< counts the forks that led to this process
};

}  // namespace

void UniqueFd::WatchForks() { Book::Instance(); }

std::uint32_t UniqueFd::LockForks() {
  Book::Instance().mutex().lock();
  return Book::Instance().era();
}

bool UniqueFd::UnlockForks(std::span<const int> fds) {
  const int error = errno;
  // Also when there is no memory to note it: a lock that stayed would hold up every later fork.
  const std::lock_guard lock(Book::Instance().mutex(), std::adopt_lock);
  bool has_any = false;
  for (const int fd : fds) {
    if (fd < 0) continue;
    Book::Instance().Note(fd);
    has_any = true;
  }
  errno = error;
  return has_any;
}

void UniqueFd::Forget(std::uint32_t era, int fd, bool close) {
  Book& book = Book::Instance();
  const std::lock_guard lock(book.mutex());
  if (era == book.era()) {  // otherwise the fork has closed it, and the number may be another's
    book.Forget(fd);
    if (close) ::close(fd);
  }
}

}  // namespace mori::shmem
