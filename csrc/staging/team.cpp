#include "staging/team.h"

#include <chrono>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace tiled {
namespace {

// How long threads wait awake. The next copy of a panel often begins before a thread that sleeps
// would be awake.
constexpr std::chrono::microseconds kAwake{500};

// Waits until is_done() holds, awake at first.
template <typename IsDone>
void wait(std::mutex& mutex, std::condition_variable& changed, const IsDone& is_done) {
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + kAwake; Clock::now() < end;) {
    if (is_done()) return;
    std::this_thread::yield();
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, is_done);
}

}  // namespace

Team& Team::of_thread() {
  static thread_local std::unique_ptr<Team, End> team;
  if (team == nullptr || team->process_ != getpid()) team.reset(new Team);
  return *team;
}

void Team::End::operator()(Team* team) const {
  if (team->process_ == getpid()) delete team;
}

Team::~Team() {
  begin(kOver);
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(int members, const std::function<void(int)>& body) {
  while (static_cast<int>(threads_.size()) < members - 1) {
    const int member = static_cast<int>(threads_.size()) + 1;
    try {
      threads_.emplace_back([this, member] { work(member); });
    } catch (const std::system_error&) {  // a limit of the process or of the system
      members = member;
    }
  }
  body_ = &body;
  running_ = members - 1;
  if (members > 1) begin(members);
  call(0);
  wait(mutex_, end_, [&] { return running_ == 0; });
  if (!error_.empty()) throw std::runtime_error(std::exchange(error_, ""));
}

void Team::begin(int members) {
  {
    const std::lock_guard lock(mutex_);
    call_ = Call{call_.load().number + 1, members};
  }
  begin_.notify_all();
}

void Team::work(int member) {
  Call seen{0, 0};
  while (true) {
    wait(mutex_, begin_, [&] { return call_.load() != seen; });
    seen = call_;
    if (seen.members == kOver) return;
    if (member >= seen.members) continue;
    call(member);
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) end_.notify_one();
  }
}

void Team::call(int member) {
  try {
    (*body_)(member);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    error_ = error.what();
  }
}

}  // namespace tiled
