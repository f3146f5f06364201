-- The twin of runs.py. A run is {owner, first, last}. Differences come first: what is added to a number
-- may not be exact.

local Runs = {}

-- Refuses runs that were read and that are empty, or more than may be: each number is gone through.
function Runs.check(runs, most)
    local many = 0
    for _, run in ipairs(runs) do
        check_numbers(run, 3)
        if run[2] > run[3] then damaged() end
        many = many + (run[3] - run[2]) + 1
    end
    if many > most then damaged() end
end

-- Adds to a list of runs that nobody else has.
function Runs.add(runs, owner, first, last)
    local newest = runs[#runs]
    if newest and newest[1] == owner and newest[3] + 1 == first then
        runs[#runs] = {owner, newest[2], last}
    else
        runs[#runs + 1] = {owner, first, last}
    end
end

function Runs.copy(runs)
    local copied = {}
    for index, run in ipairs(runs) do copied[index] = run end
    return copied
end

function Runs.joined(runs, owner, first, last)
    local after = Runs.copy(runs)
    Runs.add(after, owner, first, last or first)
    return after
end

function Runs.without(runs, owner, number)
    local left, found = {}, false
    for _, run in ipairs(runs) do
        if not found and run[1] == owner and run[2] <= number and number <= run[3] then
            found = true
            if run[2] < number then left[#left + 1] = {owner, run[2], number - 1} end
            if number < run[3] then left[#left + 1] = {owner, number + 1, run[3]} end
        else
            left[#left + 1] = run
        end
    end
    return left
end

function Runs.of_owners(runs, owners)
    local kept = {}
    for _, run in ipairs(runs) do
        if owners[run[1]] then kept[#kept + 1] = run end
    end
    return kept
end

function Runs.only(runs, owner, upto, numbers)
    local kept = {}
    for _, run in ipairs(runs) do
        if run[1] ~= owner then
            Runs.add(kept, run[1], run[2], run[3])
        else
            for number = run[2], run[3] do
                if number > upto or numbers[number] then Runs.add(kept, owner, number, number) end
            end
        end
    end
    return kept
end

function Runs.count(runs)
    local many = 0
    for _, run in ipairs(runs) do many = many + (run[3] - run[2]) + 1 end
    return many
end

function Runs.place(runs, owner, number)
    local before = 0
    for _, run in ipairs(runs) do
        if run[1] == owner and run[2] <= number and number <= run[3] then
            return before + (number - run[2]) + 1
        end
        before = before + (run[3] - run[2]) + 1
    end
    return 0
end

-- Puts the owner's numbers behind what a list has already.
function Runs.tell(runs, owner, list)
    for _, run in ipairs(runs) do
        if run[1] == owner then
            for number = run[2], run[3] do list[#list + 1] = number end
        end
    end
    return list
end
