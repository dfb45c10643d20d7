#pragma once
// Threads that are kept for work that comes again and again, such as the copies of a product.

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tiled {

class Team {
 public:
  // That of the calling thread, with which its threads end.
  static Team& of_thread();

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Calls body(0) to body(members - 1) at the same time, body(0) in this thread, and returns when
  // all have returned. Throws what one of them threw.
  void run(int members, const std::function<void(int)>& body);

 private:
  // A process that was forked has no such threads, and what they wait for stays as it was.
  struct End {
    void operator()(Team* team) const;
  };
  // What the threads wait for: the number of a call of run(), and how many members it has.
  struct Call {
    int32_t number, members;
    bool operator==(const Call&) const = default;
  };
  static constexpr int kOver = -1;  // members, when the threads are to end

  Team() = default;
  ~Team();
  void begin(int members);
  void work(int member);
  void call(int member);

  const int process_ = getpid();
  std::vector<std::thread> threads_;
  std::atomic<Call> call_ = Call{0, 0};
  std::atomic<int> running_ = 0;
  const std::function<void(int)>* body_ = nullptr;
  std::mutex mutex_;  // of the changes to call_ and running_ that threads sleep for, and of error_
  std::condition_variable begin_, end_;
  std::exception_ptr error_;
};

}  // namespace tiled
