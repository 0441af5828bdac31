// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <unistd.h>

#include "tests/processes/worker_fault.h"

namespace koho::testing {

void access_illegally(const FaultPlace&) {
  raise(SIGSEGV);
}

void hang(const FaultPlace& place) {
  struct sigaction forever {};
  forever.sa_handler = [](int) {
    while (true) pause();
  };
  sigaction(SIGRTMIN, &forever, nullptr);
  pthread_kill(place.main_thread, SIGRTMIN);
}

}  // namespace koho::testing
