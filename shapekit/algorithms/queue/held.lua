-- needs queue/queue
-- A queue that an operator holds until an override ends; if that is far away, each decision prolongs the hold.

local Held = {}
twins["queue/held"] = Held

do

local HELD = 2592000000000
local NOTICE = 350000

-- spec: its name, the spec of the queue, and the civil time at which the override ends.
function Held.new(spec)
    local queue = twin(spec[2])
    local reserve, follow = queue.reserve, queue.follow
    local function held(s, now, skew, nonce)
        local ends = spec[3] - skew
        local enough = math.min(now + HELD / 2, ends)
        if enough <= now or s and queue:confirm(s, now, skew)[3] >= enough then return s end
        return (queue:hold(s, now, skew, math.min(HELD, ends + NOTICE - now), nonce))
    end
    function queue:reserve(s, now, skew, cost, max_wait, nonce)
        return reserve(self, held(s, now, skew, nonce), now, skew, cost, max_wait, nonce)
    end
    function queue:reserve_run(s, now, skew, cost, max_wait, nonce, times)
        return one_by_one(self, self.reserve, times, s, now, skew, cost, max_wait, nonce)
    end
    function queue:follow(s, now, skew)
        return follow(self, s and held(s, now, skew, 0), now, skew)
    end
    return queue
end

end
