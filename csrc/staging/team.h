#pragma once
// Threads that are kept for work that comes again and again, such as the copies of a product.

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tiled {

class Team {
 public:
  // Returns the team of the calling thread. Its threads end with that one.
  static Team& of_thread();

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Calls body(0) to body(members - 1) at the same time, body(0) in this thread, and returns when
  // all have returned. There are fewer members if the system makes no more threads. Throws a
  // std::runtime_error with the text of an exception of one of them.
  void run(int members, const std::function<void(int)>& body);

 private:
  // In a process that was forked the threads do not exist, and to join them would take for ever. A
  // team from before the fork is not destroyed there.
  struct End {
    void operator()(Team* team) const;
  };
  // The number of a call of run(), and how many members it has: threads wait for another one.
  struct Call {
    uint32_t number;
    int members;
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
  std::string error_;
};

}  // namespace tiled
